"""PyInstaller's hook of pagequeue.demo: what it imports where it is used."""

from pagequeue._pyinstaller import installed

hiddenimports = installed("pagequeue.demo")
