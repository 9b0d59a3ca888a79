@echo off
rem Opens the GUI in the browser: gui.bat [--listen ADDRESS] [--server_port PORT] ...
rem A first training with nothing to download: gui.bat --demo [sdxl or flux] [flags of the training script]
setlocal
call "%~dp0setup.bat" || exit /b 1

if not "%~1"=="--demo" goto page
set arguments=%*
"%python%" -m sd_scripts.demo %arguments:*--demo=%
exit /b

:page
"%python%" "%root%gui.py" %*
