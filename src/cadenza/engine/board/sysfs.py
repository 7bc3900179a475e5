"""The board as files: an amdgpu sysfs and KFD tree, whose every file is whole at any moment.

A file that changes is written beside the tree and renamed over the old one. A single short write would not do: to open
a file for it truncates first, and a reader in between would find it empty. One that is open keeps the old text.
"""

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from cadenza.engine.board.drm import drm_texts
from cadenza.engine.board.faults import Message, record, stamp
from cadenza.engine.board.kfd import kfd_texts
from cadenza.engine.board.state import Member, Texts
from cadenza.errors import UsageError

NOTICE = """This folder is SIMULATED: cadenza's embedded engine writes it, no GPU was measured.

sys/         an amdgpu sysfs and KFD tree that follows the engine's load, for collectors that take a sysfs root
dev/kmsg     the kernel lines of injected and simulated faults, stamped on the engine's clock, as records
kernel.log   the same lines as dmesg prints them
"""


# What a board writes, or puts there for a moment. Beside it a user may have put what there else is of a machine (proc).
OURS = ("SIMULATED", "sys", "dev", "kernel.log", ".fresh", ".gone")


def board_texts(members: Sequence[Member], generation: int) -> Texts:
    """The whole tree of the cards that are there. card0 is a server's own display, which is no GPU of ours."""
    texts = {
        "class/drm/card0/device/vendor": b"0x1a03\n",
        "class/drm/card0/device/device": b"0x2000\n",
        "class/drm/card0/device/uevent": b"DRIVER=ast\nPCI_CLASS=38000\nPCI_ID=1A03:2000\nPCI_SLOT_NAME=0000:c3:00.0\n",
        "class/kfd/kfd/topology/generation_id": f"{generation}\n".encode(),
    }
    for member in members:
        texts |= drm_texts(*member)
    return texts | kfd_texts(members)


class Tree:
    """The board's folder on disk; it remembers what it wrote, and touches only what changed."""

    def __init__(self, root: Path) -> None:
        """Takes an empty or a new folder, or one that an earlier board wrote, which it clears.

        UsageError if the folder holds anything else or cannot be written.
        """
        self._root = root
        self._sys, self._fresh = str(root / "sys"), str(root / ".fresh")
        self._written: Texts = {}
        try:
            found = list(root.iterdir()) if root.exists() else []
            if found and not (root / "SIMULATED").is_file():
                raise UsageError(f"the board folder {root} holds something else; name a new or an empty folder")
            if links := [name for name in OURS if (root / name).is_symlink()]:
                raise UsageError(f"in the board folder {root}, {links[0]} is a link; name a new or an empty folder")
            root.mkdir(parents=True, exist_ok=True)
            (root / "SIMULATED").write_text(NOTICE, encoding="utf-8")
            shutil.rmtree(root / "sys", ignore_errors=True)
            (root / "dev").mkdir(exist_ok=True)
            # A new file: whoever follows the old one sees that another has begun, however fast it grows.
            Path(self._fresh).write_bytes(b"")
            Path(self._fresh).replace(root / "dev" / "kmsg")
            (root / "kernel.log").write_bytes(b"")
        except OSError as error:
            raise UsageError(f"the board folder {root} cannot be written: {error}") from None

    def update(self, texts: Texts, log: Sequence[Message]) -> None:
        """Make the tree hold exactly `texts`, and append `log` to both logs. UsageError if they cannot be written."""
        try:
            for name in self._written.keys() - texts.keys():
                self._remove(name, texts)
            for name, data in texts.items():
                if self._written.get(name) != data:
                    self._replace(name, data)
            self._written = texts
            if log:
                self._append("kernel.log", "".join(f"{stamp(line.at_ns, line.text)}\n" for line in log).encode())
                self._append("dev/kmsg", b"".join(map(record, log)))
        except OSError as error:
            raise UsageError(f"the board folder {self._root} cannot be written: {error}") from None

    def _append(self, name: str, data: bytes) -> None:
        with (self._root / name).open("ab", buffering=0) as file:
            file.write(data)

    def _replace(self, name: str, data: bytes) -> None:
        path = f"{self._sys}/{name}"
        if name not in self._written:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            if os.write(file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)
        os.replace(self._fresh, path)  # noqa: PTH105 - pathlib would cost as much as the write

    def _remove(self, name: str, kept: Texts) -> None:
        """A file that is gone, and with it, in one rename, the highest folder that holds nothing else."""
        gone = self._root / "sys" / name
        if not gone.exists():  # it went with a folder
            return
        live = {parent for other in kept for parent in Path(other).parents}
        target = Path(name)
        while target.parent not in live:
            target = target.parent
        aside = self._root / ".gone"
        shutil.rmtree(aside, ignore_errors=True)
        (self._root / "sys" / target).rename(aside)
        if aside.is_dir():
            shutil.rmtree(aside)
        else:
            aside.unlink()
