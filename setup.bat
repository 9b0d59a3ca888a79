@echo off
rem Makes .venv on first use and installs what requirements.txt names; gui.bat calls this file.
rem Leaves the interpreter in %python%; the exit code is 1 when something is missing.
set "root=%~dp0"
set "python=%root%.venv\Scripts\python.exe"

if not exist "%python%" (
    call :make_environment || exit /b 1
)

rem The stamp is a copy of the list that was installed last, written only after everything went in.
fc /b "%root%requirements.txt" "%root%.venv\installed.txt" >nul 2>&1 && exit /b 0
echo Installing the requirements; the first time this downloads several gigabytes
call :install_torch || goto failed
"%python%" -m pip install --disable-pip-version-check -r "%root%requirements.txt" -e "%root%." || goto failed
copy /y "%root%requirements.txt" "%root%.venv\installed.txt" >nul
exit /b 0

:failed
echo The requirements could not be installed; the lines above say why. Start again to go on where it stopped
exit /b 1

:make_environment
for %%v in (3.12 3.11 3.13 3.10) do (
    py -%%v -c "" >nul 2>&1 && (
        echo Making .venv with Python %%v
        py -%%v -m venv "%root%.venv"
        exit /b
    )
)
python -c "import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))" >nul 2>&1 && (
    echo Making .venv with the Python on the PATH
    python -m venv "%root%.venv"
    exit /b
)
echo No Python 3.10, 3.11, 3.12 or 3.13 was found. Install one from https://www.python.org/downloads/windows/
exit /b 1

:install_torch
rem PyPI's PyTorch for Windows knows no CUDA; with an NVIDIA driver take the same version from pytorch.org.
where nvidia-smi >nul 2>&1 || exit /b 0
for /f %%t in ('findstr /b "torch==" "%root%requirements.txt"') do (
    "%python%" -m pip install --disable-pip-version-check %%t --index-url https://download.pytorch.org/whl/cu130
)
exit /b
