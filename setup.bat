@echo off
rem Creates .venv on first use and installs requirements.txt; gui.bat calls this file.
rem Sets %python% to the interpreter; the exit code is 1 if something is missing.
set "root=%~dp0"
set "python=%root%.venv\Scripts\python.exe"

if not exist "%python%" (
    call :make_environment || exit /b 1
)

rem installed.txt is a copy of the requirements that were installed last, written only after everything succeeded.
fc /b "%root%requirements.txt" "%root%.venv\installed.txt" >nul 2>&1 && exit /b 0
echo Installing the requirements. The first time, this downloads several gigabytes.
call :install_torch || goto failed
"%python%" -m pip install --disable-pip-version-check -r "%root%requirements.txt" -e "%root%." || goto failed
copy /y "%root%requirements.txt" "%root%.venv\installed.txt" >nul
exit /b 0

:failed
echo The requirements could not be installed; see the output above. Start again to continue the installation.
exit /b 1

:make_environment
for %%v in (3.12 3.11 3.13 3.10) do (
    py -%%v -c "" >nul 2>&1 && (
        echo Creating .venv with Python %%v
        py -%%v -m venv "%root%.venv"
        exit /b
    )
)
python -c "import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))" >nul 2>&1 && (
    echo Creating .venv with the Python on the PATH
    python -m venv "%root%.venv"
    exit /b
)
echo No Python 3.10, 3.11, 3.12 or 3.13 was found. Install one from https://www.python.org/downloads/windows/
exit /b 1

:install_torch
rem PyPI's PyTorch for Windows has no CUDA; with an NVIDIA driver, install the same version from pytorch.org.
where nvidia-smi >nul 2>&1 || exit /b 0
for /f %%t in ('findstr /b "torch==" "%root%requirements.txt"') do (
    "%python%" -m pip install --disable-pip-version-check %%t --index-url https://download.pytorch.org/whl/cu130
)
exit /b
