"""Keys of the recommendation."""

from __future__ import annotations

from tui.keys.key import VIEW, Key

EXPORT: tuple[Key, ...] = (
    Key(
        id="export.preview",
        keys="p",
        shown="p",
        label="Preview",
        help="Look into the file under the cursor, or go back to the answer.",
        group=VIEW,
        verb="screen.preview",
        screen="export",
        in_footer=True,
        needs="run",
    ),
    Key(
        id="export.take",
        keys="t",
        shown="t",
        label="Take other",
        help="Take the next alternative instead of the recommendation.",
        group="The files",
        verb="screen.take_other",
        screen="export",
        in_footer=True,
        needs="run",
    ),
    Key(
        id="export.write",
        keys="w",
        shown="w",
        label="Write",
        help="Write the files of what is taken, after asking where to.",
        group="The files",
        verb="screen.write",
        screen="export",
        in_footer=True,
        needs="run",
    ),
    Key(
        id="export.copy",
        keys="y",
        shown="y",
        label="Copy command",
        help="Copy the command that writes these files.",
        group="Copy",
        verb="screen.copy_command",
        screen="export",
        in_footer=True,
        needs="run",
    ),
    Key(
        id="export.copy_file",
        keys="Y",
        shown="Y",
        label="Copy file",
        help="Copy the whole file under the cursor.",
        group="Copy",
        verb="screen.copy_file",
        screen="export",
        in_footer=True,
        needs="run",
    ),
)
