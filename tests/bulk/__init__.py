"""An app of the tests' own whose consumer takes many messages: put it into TEST_APPS."""
