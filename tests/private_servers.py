"""PostgreSQL and RabbitMQ servers of a test's own: on a free port, stopped, started and removed at will."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pika
import pika.exceptions
import psycopg

from tests.processes import Process, free_port, wait_until


class PostgreSQL:
    """A cluster in `folder`, without fsync: it survives a kill of its processes, not of the machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"postgres://postgres@127.0.0.1:{self.port}/postgres"
        self._process: Process | None = None
        # The server refuses to run as root.
        self._user = (
            {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
        )

    @staticmethod
    def programs() -> Path | None:
        """The folder of the newest installed `initdb`."""
        found = list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        if found:
            return max(found, key=lambda p: float(p.parts[-3])).parent
        on_path = shutil.which("initdb")
        return Path(on_path).resolve().parent if on_path else None

    @classmethod
    def missing(cls) -> str:
        """Why no server can be started here; empty if one can."""
        if cls.programs() is None:
            return "and neither /usr/lib/postgresql/*/bin/initdb nor initdb on the PATH is installed"
        if os.geteuid() == 0 and not _user_exists("postgres"):
            return "and root cannot start one without a user named postgres"
        return ""

    def start(self) -> None:
        """Start it (the first time: make the cluster) and wait until it answers."""
        programs = self.programs()
        assert programs is not None, self.missing()
        data = self.folder / "data"
        if not data.exists():
            self._initialise(programs, data)
        self._process = Process(
            [str(programs / "postgres"), "-D", str(data), "-p", str(self.port), "-k", str(self.folder),
             "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "max_connections=200"],
            env=os.environ, log=self.folder / "log", cwd=self.folder, **self._user,
        )  # fmt: skip
        wait_until(
            lambda: self._answers() or not self._process.running, timeout=30, what="PostgreSQL answers"
        )
        assert self._process.running, self._process.output

    def _initialise(self, programs: Path, data: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._user:
            # Others may have to walk through the folders above; the data itself stays closed.
            self.folder.parent.chmod(0o755)
            shutil.chown(self.folder, "postgres", "postgres")
        command = [str(programs / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8",
                   "--locale=C", "--no-sync"]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, **self._user)  # type: ignore[call-overload]

    def stop(self, signum: int = signal.SIGINT) -> None:
        """SIGINT: a fast shutdown that ends every session. SIGKILL: as a crash would."""
        if self._process is not None and self._process.running:
            if signum == signal.SIGKILL:
                self._process.kill()
            else:
                os.kill(self._process.pid, signum)  # the postmaster alone, which tells the others
                self._process.wait(30)
        self._process = None

    def remove(self) -> None:
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=3).close()
        except psycopg.Error:
            return False
        return True


class RabbitMQ:
    """A node in `folder` with a port mapper of its own, so that it meets no other node of the host."""

    SCRIPTS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/opt/homebrew/sbin/rabbitmq-server")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self._dist_port, self._epmd_port = free_port(), free_port(), free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/"
        self.node = f"outboard{self.port}@localhost"
        self._process: Process | None = None
        self._mapper: Process | None = None

    @classmethod
    def program(cls) -> str | None:
        """The server's own script: Debian's in /usr/sbin insists on its own user and folders."""
        for path in cls.SCRIPTS:
            if os.access(path, os.X_OK):
                return path
        return shutil.which("rabbitmq-server")

    @classmethod
    def control_program(cls) -> str:
        """The `rabbitmqctl` beside it, which keeps its environment as Debian's in /usr/sbin does not."""
        return str(Path(cls.program() or "").with_name("rabbitmqctl"))

    @classmethod
    def missing(cls) -> str:
        """Why no node can be started here; empty if one can."""
        if cls.program() is None:
            return "and rabbitmq-server is not installed"
        if shutil.which("epmd") is None:
            return "and Erlang's epmd is not on the PATH"
        return ""

    def start(self) -> None:
        """Start it with the data that it had, and wait until it answers."""
        script, epmd = self.program(), shutil.which("epmd")
        assert script, self.missing()
        assert epmd, self.missing()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.local = 127.0.0.1:{self.port}\ndisk_free_limit.absolute = 10MB\nlog.console = false\n"
        )
        env = self.environment()
        if self._mapper is None:
            command = [epmd, "-port", str(self._epmd_port), "-address", "127.0.0.1"]
            self._mapper = Process(command, env=env, log=self.folder / "epmd.log", cwd=self.folder)
            wait_until(lambda: _listens(self._epmd_port), what="epmd answers")
        self._process = Process([script], env=env, log=self.folder / "out.log", cwd=self.folder)
        wait_until(
            lambda: self._answers() or not self._process.running,
            timeout=60,
            every=0.2,
            what="RabbitMQ answers",
        )
        assert self._process.running, self._process.output

    def environment(self) -> dict[str, str]:
        """What the server's script and `rabbitmqctl` need to find this node."""
        folder = str(self.folder)
        return {
            "PATH": os.environ["PATH"],
            "HOME": folder,  # for the cookie
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP": "/dev/null",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{folder}/config",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def ctl(self, *arguments: str) -> str:
        """Run `rabbitmqctl` on this node; its output."""
        command = [self.control_program(), "-q", "-n", self.node, *arguments]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """SIGTERM: durable queues and persistent messages stay. SIGKILL: as a crash would."""
        if self._process is not None and self._process.running:
            self._process.send(signum)
            self._process.wait(30)
            wait_until(lambda: not _listens(self.port), timeout=30, what="RabbitMQ is gone")
        self._process = None

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        assert self._process is not None
        self._process.stop()

    def thaw(self) -> None:
        assert self._process is not None
        self._process.cont()

    def remove(self) -> None:
        self.stop(signal.SIGKILL)
        if self._mapper is not None:
            self._mapper.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        if not _listens(self.port):
            return False
        try:
            pika.BlockingConnection(pika.URLParameters(self.url)).close()
        except (pika.exceptions.AMQPError, OSError):
            return False
        return True


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _user_exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
