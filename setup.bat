@echo off
rem Creates .venv on first use and installs requirements.txt; gui.bat calls this file.
rem Sets %python% to the interpreter; the exit code is 1 if something is missing.
set "root=%~dp0"
set "python=%root%.venv\Scripts\python.exe"
set "supported=import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13) or sys.maxsize < 2**32)"

rem pip fails if the environment was interrupted while it was created, or if its Python was uninstalled; packages that
rem another Python installed there would not load.
"%python%" -m pip --version >nul 2>&1 && goto created
set "base="
for %%v in (3.12 3.11 3.13 3.10) do if not defined base py -%%v -c "%supported%" >nul 2>&1 && set "base=py -%%v"
if not defined base python -c "%supported%" >nul 2>&1 && set "base=python"
if not defined base goto no_python
echo Creating .venv with: %base%
%base% -m venv --clear "%root%.venv" || exit /b 1

:created
"%python%" -c "%supported%" || goto unsupported
rem Copies of the files that were installed last, written only after everything succeeded.
fc /b "%root%requirements.txt" "%root%.venv\requirements.txt" >nul 2>&1 || goto install
fc /b "%root%requirements-no-deps.txt" "%root%.venv\requirements-no-deps.txt" >nul 2>&1 || goto install
fc /b "%root%pyproject.toml" "%root%.venv\pyproject.toml" >nul 2>&1 || goto install
exit /b 0

:install
echo Installing the requirements. The first time, this downloads several gigabytes.
rem First the CUDA build of PyTorch that the driver runs: PyPI's PyTorch for Windows has no CUDA.
setlocal
set "PYTHONPATH=%root%"
"%python%" -m sd_scripts.tools.install_torch || goto failed
endlocal
"%python%" -m pip install --disable-pip-version-check -r "%root%requirements.txt" -e "%root%." || goto failed
"%python%" -m pip install --disable-pip-version-check --no-deps -r "%root%requirements-no-deps.txt" || goto failed
copy /y "%root%requirements.txt" "%root%.venv\requirements.txt" >nul || goto failed
copy /y "%root%requirements-no-deps.txt" "%root%.venv\requirements-no-deps.txt" >nul || goto failed
copy /y "%root%pyproject.toml" "%root%.venv\pyproject.toml" >nul || goto failed
exit /b 0

:failed
echo The requirements could not be installed; see the output above. Start again to continue the installation.
exit /b 1

:no_python
echo No 64-bit Python 3.10, 3.11, 3.12 or 3.13 was found. Install one from https://www.python.org/downloads/windows/
exit /b 1

:unsupported
echo A 64-bit Python 3.10, 3.11, 3.12 or 3.13 is required, but .venv has another. Delete .venv and start again.
exit /b 1
