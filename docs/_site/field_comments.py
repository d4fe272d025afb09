"""Fields of a class as one table. The comment beside a field describes it: `weights: Weights  # (n,)`."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Move the fields of every class into an "Attributes" section of its docstring."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Called once the package is loaded; constructors are derived from the fields first."""
        griffe.DataclassesExtension().on_package(pkg=pkg)
        for module in modules_in(pkg):
            module.docstring = None  # pages have introductions of their own
            for member in module.members.values():  # a constant is described by its comment
                if isinstance(member, griffe.Attribute) and not member.docstring and comment_of(member):
                    member.docstring = griffe.Docstring(comment_of(member), parent=member, parser="google")
        for cls in classes_in(pkg):
            fields = [member for member in cls.members.values() if is_field(member)]
            lines = [line for field in fields if (line := line_of(field))]
            text = cls.docstring.value if cls.docstring else ""
            if lines and "Attributes:" not in text:
                text = "\n".join([text, "", "Attributes:", *lines])
                cls.docstring = griffe.Docstring(text, lineno=cls.lineno, parent=cls, parser="google")
            special = [name for name in cls.members if name.startswith("__") and name != "__init__"]
            for name in [*special, *(field.name for field in fields)]:
                del cls.members[name]


def modules_in(module: griffe.Module) -> Iterator[griffe.Module]:
    """The module and all below it."""
    yield module
    for member in module.members.values():
        if isinstance(member, griffe.Module):
            yield from modules_in(member)


def classes_in(package: griffe.Module) -> Iterator[griffe.Class]:
    """All classes at the top of its modules."""
    for module in modules_in(package):
        yield from (member for member in module.members.values() if isinstance(member, griffe.Class))


def is_field(member: griffe.Object | griffe.Alias) -> bool:
    """Whether it is an attribute with neither a docstring nor code of its own."""
    if not isinstance(member, griffe.Attribute) or member.name.startswith("_"):
        return False
    return "property" not in member.labels and member.docstring is None


def line_of(field: griffe.Attribute) -> str:
    """`name (type): comment. Default: value.`, or nothing where there is nothing to say."""
    value = "" if field.value is None else str(field.value)
    kind = "" if field.annotation is None else spelled_out(field, str(field.annotation))
    if kind and "instance-attribute" not in field.labels:  # of the class: the name of a rule, its facts
        return ""
    if not kind and value[:1] in ("'", '"'):  # a member of an enumeration is its text
        return f"    {field.name}: {value[1:-1]}."
    words = [comment_of(field)]
    if kind and value and not value.startswith("field("):
        words.append(f"Default: `{value}`.")
    text = " ".join(filter(None, words)) or ("Required." if kind else "")
    return text and f"    {field.name}{f' ({kind})' if kind else ''}: {text}"


def spelled_out(field: griffe.Attribute, kind: str) -> str:
    """A type, or the choices where it is the alias of a `Literal`."""
    alias = field.module.members.get(kind)
    value = str(alias.value) if isinstance(alias, griffe.Attribute) else ""
    return value if value.startswith("Literal[") else kind


def comment_of(field: griffe.Attribute) -> str:
    """The comments in the statement, as a sentence."""
    if not field.lineno or not field.endlineno:
        return ""
    lines = field.lines_collection[field.filepath][field.lineno - 1 : field.endlineno]
    try:
        source = "\n".join(line.strip() for line in lines)
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, IndentationError):
        return ""
    words = " ".join(token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT)
    if not words or words.startswith(("type:", "noqa", "fmt:")):
        return ""
    return words[0].upper() + words[1:].rstrip(".") + "."
