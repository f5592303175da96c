"""PyInstaller's hook of pagequeue.cli: commands, each imported when it is called."""

from PyInstaller.utils.hooks import collect_submodules

hiddenimports = collect_submodules("pagequeue.cli")
