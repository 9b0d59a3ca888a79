@echo off
rem Serve the GUI: gui.bat [--inbrowser] [--listen ADDRESS] [--server_port PORT] ...
rem Train on a miniature, without a model to download: gui.bat --demo [sdxl, flux, kontext or qwen] [flags of the training script]
setlocal EnableExtensions DisableDelayedExpansion
call "%~dp0setup.bat" || goto failed
"%python%" "%root%gui.py" %* || goto failed
exit /b 0

:failed
set "code=%errorlevel%"
rem A window that Explorer opened closes at the end, before its messages can be read.
set "started=%cmdcmdline:"=%"
if not "%started:gui.bat=%"=="%started%" pause
exit /b %code%
