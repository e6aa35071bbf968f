"""The commands, in the order in which help lists them. Each file has NAME, `add_arguments` and `run`."""

from pipelines.commands import backtest_command, broker_command, topics_command, up_command

COMMANDS = (backtest_command, up_command, topics_command, broker_command)
