"""pika's SelectConnection, and what it lacks: how much is still unsent, a call when all of it has left the
process, one write for many frames, an end without farewell, and properties that can't break it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pika import SelectConnection, frame, spec
from pika.adapters.select_connection import IOLoop
from pika.adapters.utils.selector_ioloop_adapter import SelectorIOServicesAdapter

from outbox_core.transports.amqp_reading import read_header_frame

HEADER_FRAME = bytes([spec.FRAME_HEADER])


class Loop(SelectorIOServicesAdapter):  # type: ignore[misc]
    """pika's I/O loop, which says when the outgoing buffer ran empty.

    pika stops watching a socket for writing exactly then; a writable socket is served before a readable one, so
    `drained` comes before anything that the broker answers to those bytes is read.
    """

    def __init__(self, drained: Callable[[], None]) -> None:
        super().__init__(IOLoop())
        self._drained = drained

    def remove_writer(self, fd: int) -> bool:
        was_watched: bool = super().remove_writer(fd)
        if was_watched:
            self._drained()
        return was_watched


class Wire(SelectConnection):  # type: ignore[misc]
    """One AMQP connection. `doomed`: its end has begun, and nothing that is written now reaches the broker."""

    doomed = False

    @property
    def unsent(self) -> int:
        """Bytes that are handed over and not yet with the kernel."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def frame_max(self) -> int:
        """The largest frame that both sides agreed to, in bytes; 0 for no limit."""
        return int(self.params.frame_max or 0)

    def write(self, frames: bytes) -> None:
        """Hand over complete frames, as one piece."""
        self._output_marshaled_frames([frames])

    def abort(self, reason: Exception) -> None:
        """End the connection at once, without the broker's part in it; the close callback gets `reason`."""
        if not self.doomed and not self.is_closed:
            self._terminate_stream(reason)

    def _terminate_stream(self, error: Exception | None) -> None:
        self.doomed = True
        super()._terminate_stream(error)

    def _read_frame(self) -> tuple[int, Any]:
        if self._frame_buffer[:1] == HEADER_FRAME:
            return read_header_frame(self._frame_buffer)
        found: tuple[int, frame.Frame | None] = super()._read_frame()
        return found
