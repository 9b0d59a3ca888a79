@echo off
rem Opens the GUI in the browser: gui.bat [--listen ADDRESS] [--server_port PORT] ...
rem A first training with nothing to download: gui.bat --demo [sdxl or flux]
setlocal
call "%~dp0setup.bat" || exit /b 1

if "%~1"=="--demo" (
    "%python%" -m sd_scripts.demo %2 %3 %4 %5 %6 %7 %8 %9
    exit /b
)
"%python%" "%root%gui.py" %*
