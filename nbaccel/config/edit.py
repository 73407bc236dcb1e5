"""Changes to the text of a YAML mapping that leave everything else in it as it was written.

Comments, order, quoting and keys that nobody here knows stay. Pure: texts in, texts out.
"""

from __future__ import annotations

from collections.abc import Mapping


def edited(text: str, changes: Mapping[str, object]) -> str:
    """``text`` with some of its top-level keys changed.

    Args:
        text: a YAML mapping, or nothing.
        changes: value by key; None takes the key away with its line, a key that isn't there is added
            at the end.

    Returns:
        A text that reads as the mapping with the changes. Where the text is written in a way that can't
        be cut into (flow style, anchors), it is written anew, without its comments.
    """
    import yaml

    wanted = dict(yaml.safe_load(text) or {})
    for key, value in changes.items():
        if value is None:
            wanted.pop(key, None)
        else:
            wanted[key] = value
    draft = _spliced(text, changes)
    try:
        fits = (yaml.safe_load(draft) or {}) == wanted
    except yaml.YAMLError:
        fits = False
    if fits:
        return draft
    anew: str = yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True)
    # Some control characters (U+0085) are read as others unless they are escaped.
    return anew if yaml.safe_load(anew) == wanted else yaml.safe_dump(wanted, sort_keys=False)


def _spliced(text: str, changes: Mapping[str, object]) -> str:
    import yaml

    tree = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = {str(key.value): (key, value) for key, value in tree.value} if tree is not None else {}
    # From the end, so that the positions before stay right.
    for name, (key, value) in sorted(pairs.items(), key=lambda pair: -pair[1][0].start_mark.index):
        if name not in changes:
            continue
        end = _end(value)
        if changes[name] is None:
            line_end = text.find("\n", end)
            text = text[: key.start_mark.index] + ("" if line_end < 0 else text[line_end + 1 :])
        else:
            text = f"{text[: key.end_mark.index]}: {_inline(changes[name])}{text[end:]}"
    added = [
        f"{name}: {_inline(value)}\n"
        for name, value in changes.items()
        if name not in pairs and value is not None
    ]
    if added and text and not text.endswith("\n"):
        text += "\n"
    return text + "".join(added)


def _end(value: object) -> int:
    """Where a value's text ends; a block's own mark lies behind the comments that follow it."""
    import yaml

    while isinstance(value, yaml.SequenceNode) and not value.flow_style and value.value:
        value = value.value[-1]
    assert isinstance(value, yaml.Node)
    end: int = value.end_mark.index
    return end


def _inline(value: object) -> str:
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")
