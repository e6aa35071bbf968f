"""The commands, in the order in which help lists them. Each file has NAME, `add_arguments` and `run`."""

from pipelines.commands import (
    backtest_command,
    broker_command,
    demo_command,
    doctor_command,
    import_command,
    simulate_command,
    sweep_command,
    topics_command,
    up_command,
    watch_command,
)

COMMANDS = (
    demo_command,
    backtest_command,
    simulate_command,
    sweep_command,
    import_command,
    up_command,
    watch_command,
    topics_command,
    broker_command,
    doctor_command,
)
