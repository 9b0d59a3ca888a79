@echo off
rem Serve the GUI: gui.bat [--inbrowser] [--listen ADDRESS] [--server_port PORT] ...
rem Train on a miniature, with nothing to download: gui.bat --demo [sdxl, flux, kontext or qwen] [flags of the training script]
setlocal
call "%~dp0setup.bat" || exit /b 1

"%python%" "%root%gui.py" %*
