"""PyInstaller's hook of pagequeue.spark: the sources of its readers in the JVM, and a Java."""

from PyInstaller.utils.hooks import collect_data_files

from pagequeue._pyinstaller import installed

datas = collect_data_files("pagequeue.spark", includes=["**/*.java"])
hiddenimports = installed("pagequeue.spark")
