# The GUI and the trainer for one machine with NVIDIA GPUs: docs/docker.md has the commands.
FROM python:3.11-slim-bookworm

# torch.compile needs a compiler: inductor calls g++, Triton gcc. tini forwards signals and reaps the processes of runs.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ tini \
    && rm -rf /var/lib/apt/lists/*

# PyPI's PyTorch brings CUDA 13; drivers for CUDA 12 need --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126
ARG TORCH_INDEX=""
COPY requirements.txt requirements-no-deps.txt /app/
RUN --mount=type=cache,target=/root/.cache/pip \
    if [ -n "$TORCH_INDEX" ]; then \
        pip install --index-url "$TORCH_INDEX" "$(grep '^torch==' /app/requirements.txt)"; \
    fi \
    && pip install -r /app/requirements.txt \
    && pip install --no-deps -r /app/requirements-no-deps.txt

# The home folder is the volume: models, images and outputs, and below it the list of runs, the token and all caches.
ARG UID=1000
RUN useradd --uid "$UID" --home-dir /data --create-home studio

# After the packages, so that a change of code downloads none; owned by root, so that a run cannot change the code.
COPY . /app/
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps -e /app \
    && python -m compileall -q /app

ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER $UID
WORKDIR /data
VOLUME /data
EXPOSE 7860

# Answered without a token or password, if only with 401: the page is up.
HEALTHCHECK --interval=30s --timeout=10s --start-period=2m CMD ["python", "-c", "import http.client; page = http.client.HTTPConnection('127.0.0.1', 7860, timeout=5); page.request('GET', '/favicon.ico'); raise SystemExit(page.getresponse().status >= 500)"]

ENTRYPOINT ["tini", "--", "python", "/app/gui.py"]
CMD ["--listen", "0.0.0.0", "--server_port", "7860", "--token"]
