"""The list of settings is frozen in `settings.txt`; running this file writes it."""

from importlib import import_module
from pathlib import Path
from textwrap import fill

import bixse
from bixse.cli.main import VERBS, parse
from bixse.settings import Settings, section_of

LIST = Path(__file__).with_name("settings.txt")
SOURCE = Path(bixse.__file__).parents[1]


def names_of(kind, seen, before=""):
    """Yield the names of all settings of a class, dotted within sections, and add the classes to `seen`."""
    seen.add(kind)
    for name, field in kind.model_fields.items():
        section = section_of(field)
        yield before + name
        yield from names_of(section, seen, f"{before}{name}.") if section else ()


def below(kind):
    """Return all classes that are derived from a class."""
    return {kind_below for child in kind.__subclasses__() for kind_below in {child, *below(child)}}


def settings():
    """Return verb, or class that belongs to no verb -> names of its settings."""
    names, seen = {}, set()
    for name in VERBS:
        verb = parse(name.split())[1]
        without = {"words", *(flag for flag in ("out", "dry_run", "report") if not getattr(verb, flag))}
        without |= {"overwrite"} if verb.out is None or verb.out.metavar == "FILE" else set()
        names[name] = sorted({*names_of(verb.settings, seen), *names_of(verb.options, seen)} - without)
    for path in sorted(SOURCE.rglob("*.py")):
        if any(f"({word}" in path.read_text(encoding="utf-8") for word in ("Settings", "LossOptions")):
            import_module(".".join(path.relative_to(SOURCE).with_suffix("").parts))
    bases = {base for kind in seen for base in kind.__mro__}  # their settings are those of the verbs
    others = {kind for kind in below(Settings) - seen - bases if kind.__module__.startswith("bixse.")}
    return names | {kind.__name__: sorted(kind.model_fields) for kind in sorted(others, key=lambda kind: kind.__name__)}


def test_no_setting_was_added_or_left_out():
    blocks = [block.splitlines() for block in LIST.read_text(encoding="utf-8").split("\n\n")]
    assert {heading: " ".join(lines).split() for heading, *lines in blocks} == settings()


if __name__ == "__main__":
    indents = {"initial_indent": "  ", "subsequent_indent": "  "}
    blocks = [f"{name}\n{fill(' '.join(names), 118, **indents)}" for name, names in settings().items()]
    LIST.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
