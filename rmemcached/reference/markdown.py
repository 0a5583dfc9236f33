"""The options of all commands as Markdown, for the documentation's site."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmemcached.reference.commands import Command, Entry, Text


def cell(text: str) -> str:
    """Returns text for a table."""
    for sign in "\\*_<>[]$":
        text = text.replace(sign, "\\" + sign)
    return text.replace("|", "\\|")


def code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def paragraphs(texts: Sequence[Text]) -> Iterator[str]:
    for text in texts:
        if text.literal:
            yield f"```text\n{text.text}\n```"
        else:
            # Text in backquotes stays code.
            parts = text.text.split("`")
            yield "`".join(part if index % 2 else cell(part) for index, part in enumerate(parts))


def row(entry: Entry) -> str:
    if not entry.names:
        return f"| {code(entry.value)} | {cell(entry.help)} |"
    value = f" {entry.value}" if entry.value else ""
    names = ", ".join(code(name + value) if name == entry.names[-1] else code(name) for name in entry.names)
    return f"| {names} | {cell(entry.help)} |"


def table(rows: Sequence[str], title: str) -> str:
    return "\n".join([f"| {title} | |", "|---|---|", *rows])


def command_text(command: Command, level: int) -> Iterator[str]:
    yield f"{'#' * level} {command.name}"
    summary = command.summary[:1].upper() + command.summary[1:]
    yield cell(summary.rstrip(".")) + "."
    yield f"```text\n{command.usage}\n```"
    yield from paragraphs(command.description)
    for group in command.groups:
        yield table([row(entry) for entry in group.entries], cell(group.title))
    if command.suboptions:
        rows = []
        for option in command.suboptions:
            names = [code(f"{name}={value}" if value else name) for name, value in option.names]
            rows.append(f"| {', '.join(names)} | {cell(option.help)} |")
        yield table(rows, "Behind `-o`, separated by commas")
    yield from paragraphs(command.epilog)
    for child in command.subcommands:
        yield from command_text(child, level + 1)


def page(commands: Sequence[Command]) -> str:
    """Returns sections of level 2 for commands and of level 3 for subcommands."""
    return "\n\n".join(part for command in commands for part in command_text(command, 2)) + "\n"
