"""What a node may say of itself: texts that other nodes, terminals and logs get to see. Pure."""

MAX_TEXT = 256  # characters; a host's name has 253 at most
TEXTS = ("address", "version", "rack", "site", "name")  # of an announcement


def unfit(text: str) -> str:
    """What is wrong with a text, as the end of a sentence that names it; empty: nothing."""
    if len(text) > MAX_TEXT:
        return f"has {len(text)} characters; {MAX_TEXT} are allowed"
    if not text.isprintable():  # it could change a terminal, or forge a line of a log
        return "has characters that can't be printed"
    return ""
