"""The modes of files that a command wrote."""

import os
import stat


def odd_modes(folder):
    """Files and folders below a folder whose mode is not the one that the umask leaves a new one."""
    mask = os.umask(0)
    os.umask(mask)
    modes = {path.relative_to(folder): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    return {
        str(name): oct(mode)
        for name, mode in modes.items()
        if mode != (0o777 if (folder / name).is_dir() else 0o666) & ~mask
    }
