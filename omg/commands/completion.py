"""`omg completion`: a completion script for bash or zsh."""

from __future__ import annotations

from omg.commands import SACRED_COMMANDS, VERBS
from omg.config import CONFIG_DIR, Command, available, read_yaml
from omg.utils.settings import UserError

SUMMARY = "Prints a completion script, to be evaluated in ~/.bashrc or ~/.zshrc."
EXAMPLES = ['eval "$(omg completion bash)"']

SCRIPT = """\
_omg() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    if [ "$word" = "=" ]; then word=""; elif [ "$before" = "=" ]; then before="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
    case "$before" in
        --config) COMPREPLY=($(compgen -W "{algs}" -- "$word"));;
        --env-config) COMPREPLY=($(compgen -W "{envs}" -- "$word"));;
        workflow) COMPREPLY=($(compgen -W "{workflows}" -- "$word"));;
        benchmark) COMPREPLY=($(compgen -W "{tasks}" -- "$word"));;
        *)  case "$word" in
                --*) COMPREPLY=($(compgen -S= -W "{options}" -- "$word")); compopt -o nospace 2>/dev/null;;
                *) COMPREPLY=($(compgen -W "{verbs}" -- "$word") $(compgen -f -- "$word"));;
            esac;;
    esac
}}
complete -F _omg omg
"""


def settings(command: Command) -> list[type]:
    return []


def main(command: Command) -> int:
    if command.words not in (["bash"], ["zsh"]):
        raise UserError("completion takes a shell: omg completion bash, or omg completion zsh.")
    keys = ["config", "env-config", "import", "help", *read_yaml(CONFIG_DIR / "default.yaml")]
    if command.words == ["zsh"]:
        print("autoload -U +X bashcompinit && bashcompinit")
    print(
        SCRIPT.format(
            algs=" ".join(available("algs")),
            envs=" ".join(available("envs")),
            workflows=" ".join(available("workflows")),
            tasks=" ".join(available("tasks")),
            options=" ".join(f"--{key}" for key in keys),
            verbs=" ".join((*VERBS, *SACRED_COMMANDS)),
        )
    )
    return 0
