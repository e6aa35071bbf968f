"""Scripts that complete the command line in bash, zsh and fish, made from the parsers. Changes no shell.

Law: a command or an option is completed if and only if the parsers know it.
"""

import argparse
from dataclasses import dataclass
from functools import cache

from pipelines.cli import parser
from pipelines.commands import NAMES, about

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True)
class Option:
    """One option; `takes` is what stands for its value, empty for a switch, `choices` the values if they are few."""

    names: tuple[str, ...]
    about: str
    takes: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its options, and the words that may stand without one."""

    name: str
    about: str
    options: tuple[Option, ...]
    words: tuple[str, ...]


@cache
def commands() -> tuple[Command, ...]:
    """Every command as its parser has it."""
    return tuple(_command(name) for name in NAMES)


def top_options() -> tuple[Option, ...]:
    """Options before the command."""
    return tuple(_option(action) for action in parser()._actions if action.option_strings)


def script(shell: str) -> str:
    """The script of a shell. Raises KeyError for another one than `SHELLS`."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def _command(name: str) -> Command:
    actions = next(a for a in parser(name)._actions if isinstance(a, argparse._SubParsersAction)).choices[name]._actions
    shown = [action for action in actions if action.help != argparse.SUPPRESS]
    options = tuple(_option(action) for action in shown if action.option_strings)
    words = tuple(str(word) for action in shown if not action.option_strings for word in action.choices or ())
    return Command(name, about(name), options, words)


def _option(action: argparse.Action) -> Option:
    takes = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    return Option(
        tuple(action.option_strings), action.help or "", takes, tuple(str(each) for each in action.choices or ())
    )


def _names(options: tuple[Option, ...]) -> str:
    return " ".join(name for option in options for name in option.names)


def _bash() -> str:
    """Options where a dash was typed; else the words of the command, values of the option before, and files."""
    cases = []
    for command in commands():
        values = "".join(
            f"\n        {'|'.join(option.names)}) words='{' '.join(option.choices)}' ;;"
            for option in command.options
            if option.choices
        )
        chosen = f'\n      case "$before" in{values}\n      esac' if values else ""
        known = f"options='{_names(command.options)}' words='{' '.join(command.words)}'"
        cases.append(f"    {command.name})\n      {known}{chosen} ;;")
    every = "|".join(NAMES)
    newline = "\n"
    return f"""# bash: twincast completion bash > ~/.local/share/bash-completion/completions/twincast
_twincast() {{
  local now="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="" options="" words="" word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in {every}) command="$word"; break ;; esac
  done
  case "$command" in
    "") options='{_names(top_options())}' words='{" ".join(NAMES)}' ;;
{newline.join(cases)}
  esac
  if [[ "$now" == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$now"))
  else
    COMPREPLY=($(compgen -W "$words" -- "$now"))
    if [[ -n "$command" && ${{#COMPREPLY[@]}} -eq 0 ]]; then COMPREPLY=($(compgen -f -- "$now")); fi
  fi
}}
complete -o filenames -F _twincast twincast
"""


def _zsh() -> str:
    """zsh reads scripts of bash."""
    return (
        "# zsh: source <(twincast completion zsh) after compinit, in ~/.zshrc\n"
        "autoload -U +X bashcompinit && bashcompinit\n" + _bash().partition("\n")[2]
    )


def _fish() -> str:
    lines = ["# fish: twincast completion fish > ~/.config/fish/completions/twincast.fish"]
    lines += [_fish_option("__fish_use_subcommand", option) for option in top_options()]
    for command in commands():
        lines.append(f"complete -c twincast -f -n __fish_use_subcommand -a {command.name} -d {_quoted(command.about)}")
        seen = f"__fish_seen_subcommand_from {command.name}"
        lines += [_fish_option(seen, option) for option in command.options]
        if command.words:
            lines.append(f"complete -c twincast -f -n {_quoted(seen)} -a {_quoted(' '.join(command.words))}")
    return "\n".join(lines) + "\n"


def _fish_option(when: str, option: Option) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
    values = f" -x -a {_quoted(' '.join(option.choices))}" if option.choices else " -r" if option.takes else ""
    return f"complete -c twincast -n {_quoted(when)} {names}{values} -d {_quoted(option.about.split(';')[0])}"


def _quoted(text: str) -> str:
    """A word of fish, in single quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
