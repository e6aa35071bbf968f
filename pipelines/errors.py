"""Errors of the shell that tell a person what to change. Does not print, exit or hold our own bugs.

Law: the text of a `ConfigError` is one line and ends with the next step.
"""


class ConfigError(Exception):
    """Something outside the program stands in the way: a setting, a port, a directory, a missing tool.

    The command line prints the text as its only line and exits with code 2, without a traceback.

    >>> str(ConfigError("port 9092 on 127.0.0.1 is in use;\\nchoose another"))
    'port 9092 on 127.0.0.1 is in use; choose another'
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
