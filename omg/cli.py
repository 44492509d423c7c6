"""The command line: from words to a command. `python main.py …` and `python -m omg …` are the same as `omg …`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from typing import NoReturn

import yaml

from omg import __version__, commands
from omg.commands import SACRED_COMMANDS, TAKES_WORDS, VERBS
from omg.config import CONFIG_DIR, DEFAULT_ALG, DEFAULT_ENV, Command, load, read_yaml, value_of
from omg.utils.files import said
from omg.utils.interrupts import raises
from omg.utils.logging import say
from omg.utils.settings import UserError, nearest, options_of

USAGE = """\
OMG: opponent modelling in multi-agent reinforcement learning.

usage: omg VERB [--config=ALG] [--env-config=ENV] [--key=value …] [with key=value …]

verbs:
{verbs}
A first run:          omg train --config=iql --env-config=foraging --t_max=20000
All names:            omg list
Settings of a verb:   omg VERB --help   (with --config=…: also those of that algorithm)

Settings are merged default → environment → algorithm → command line. Write --key=value, --key value, --flag (true), or
after the word 'with' key=value; dots reach inside: env_args.food=5. Your own environments, algorithms, agent models and
scripted policies: --import my_module. Files never cause an import of modules they name, unless you add --trust.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status. A mistake in the input is one sentence on stderr and status 2."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        if not words or words in (["-h"], ["--help"], ["help"]):
            listed = VERBS | {"print_config": SACRED_COMMANDS["print_config"]}
            print(USAGE.format(verbs="".join(f"  {verb:<14}{text}\n" for verb, text in listed.items())))
            return 0
        if words == ["--version"]:
            print(f"omg {__version__}")
            return 0
        command = parse(words)
        if command.help:
            return show_help(command)
        commands.module_of(command.verb)
        # `train` has nothing to save until it listens to signals itself; other commands tidy up.
        with contextlib.nullcontext() if command.verb == "train" else raises(signal.SIGINT):
            return commands.run(command)
    except UserError as error:
        say(f"omg: {error}", "red")
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        # The disk is full, a folder was removed, a file system became read-only. What was saved before is whole.
        say(f"omg: stopped, because the system said: {said(error)}.", "red")
        return 1
    except KeyboardInterrupt:
        say("stopped.")
        return 130


def entry() -> NoReturn:
    """The program. After Ctrl-C it exits at once: tearing down a running computation would print noise."""
    try:
        status = main()
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        # The reader of a pipe has closed it, as in `omg train --help | head`.
        os._exit(1)
    if status == 130:
        os._exit(status)
    sys.exit(status)


def parse(words: list[str]) -> Command:
    """Words in any order: a verb, `--config=…`, `--key=value`, `--key value`, `--flag`, and after `with` key=value."""
    command, after_with, verb_given = Command(), False, False
    flags = {key for key, value in read_yaml(CONFIG_DIR / "default.yaml").items() if isinstance(value, bool)}
    flags |= {"help", "json", "trust", "no_browser", "metrics", "optuna", "minimise"}
    queue = list(words)
    while queue:
        word = queue.pop(0)
        key, equals, text = word.partition("=")
        if word.startswith("--") and not equals and queue and _is_value(queue[0], key[2:] in flags):
            text, equals = queue.pop(0), "="
        if word in ("-h", "--help", "help"):
            command.help = True
        elif word == "with":
            after_with = True
        elif key in ("--config", "--env-config", "--import"):
            if not text:
                example = {"--config": "qmix", "--env-config": "foraging", "--import": "my_module"}[key]
                raise UserError(f"{key} needs a name, as in {key}={example}.")
            if key == "--import":
                command.imports.append(text)
            else:
                setattr(command, key[2:].replace("-", "_"), text)
        elif key in ("--json", "--trust"):
            setattr(command, key[2:], True)
        elif word.startswith("--"):
            if key == "--":
                raise UserError(f"{word!r} is not a setting: write --key=value.")
            command.updates.append((key[2:], value_of(text) if equals else True))
        elif equals and after_with:
            command.updates.append((key, value_of(text)))
        elif after_with and word.endswith((".yaml", ".yml", ".json")):
            command.files.append(word)
        elif equals:
            raise UserError(f"what should {word!r} do? Write --{word}, or put 'with' before it.")
        elif verb_given and command.verb in TAKES_WORDS:
            command.words.append(word)
        elif verb_given:
            raise UserError(f"unexpected word {word!r}.{nearest(word, (*VERBS, *SACRED_COMMANDS))}")
        else:
            command.verb, verb_given = word, True
            commands.check_verb(word)
    return command


def _is_value(word: str, of_flag: bool) -> bool:
    """Whether a word is the value of the option before it; a flag takes only true and false as a separate word."""
    if of_flag:
        return word in ("true", "false")
    return not word.startswith("--") and word != "with" and word not in VERBS and word not in SACRED_COMMANDS


def show_help(command: Command) -> int:
    """A verb's summary, examples and settings."""
    module = commands.module_of(command.verb)
    layered = command.verb not in commands.WITHOUT_LAYERS
    merged = load(command) if layered else {}
    print(f"omg {command.verb}: {(VERBS | SACRED_COMMANDS)[command.verb]}\n\n{module.SUMMARY}\n\nexamples:")
    print("\n".join(f"  {example}" for example in module.EXAMPLES))
    shown: set[str] = set()
    for cls in module.settings(command):
        new = [option for option in options_of(cls) if option["name"] not in shown]
        if command.verb in commands.OF_A_MODEL:
            new = [option for option in new if option["name"] in commands.OF_A_MODEL[command.verb]]
        if new:
            print(f"\n{_title(cls)}:")
        for option in new:
            shown.add(option["name"])
            example = f"--{option['name']}={_text(merged.get(option['name'], option['default']))}"
            print(f"  {example:<36} {option['help']}")
    if command.verb != "completion":
        print("\n--import MODULE loads your own environments, algorithms, agent models and scripted policies first.")
    if layered:
        names = f"--config={command.config or DEFAULT_ALG} --env-config={command.env_config or DEFAULT_ENV}"
        print(f"\nThe values are those of {names}; other names have other settings and values.")
    return 0


def _title(cls: type) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", cls.__name__.removesuffix("Settings"))
    return words[0] + words[1:].replace(" Learner", " learner") + " settings"


def _text(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=200).split("\n")[0].replace(", ", ",")


if __name__ == "__main__":
    entry()
