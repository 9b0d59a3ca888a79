"""Which model a pasted text names."""

import pytest

from kohya_gui.models.address import Address, CivitaiAddress, HubAddress, read_address

FLUX, FILE = "black-forest-labs/FLUX.1-dev", "flux1-dev.safetensors"
HUB = f"https://huggingface.co/{FLUX}"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (FLUX, HubAddress(repo=FLUX)),
        (f" {HUB}/ ", HubAddress(repo=FLUX)),
        (f"huggingface.co/{FLUX}", HubAddress(repo=FLUX)),
        (f"{FLUX}/{FILE}", HubAddress(repo=FLUX, file=FILE)),
        (f"{HUB}/resolve/main/{FILE}?download=true", HubAddress(repo=FLUX, file=FILE)),
        (f"{HUB}/blob/v1.0/vae/a%20b.safetensors", HubAddress(repo=FLUX, revision="v1.0", file="vae/a b.safetensors")),
        (f"{HUB}/tree/main/vae", HubAddress(repo=FLUX)),
        ("https://hf.co/a/b", HubAddress(repo="a/b")),
        ("https://civitai.com/models/101055/sd-xl?modelVersionId=128078", CivitaiAddress(model=101055, version=128078)),
        ("civitai.com/models/101055", CivitaiAddress(model=101055)),
        ("https://civitai.com/api/download/models/128078?type=Model&format=SafeTensor", CivitaiAddress(version=128078)),
    ],
)
def test_addresses_are_understood(text: str, address: Address) -> None:
    assert read_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "model", "/models/a.safetensors", "./a/b", "C:\\models\\a.safetensors", "a/b\x00c/d", "a" * 5000),
        *("http://127.0.0.1:8080/a/b", "https://evil.example/a/b/resolve/main/c.safetensors", "file:///etc/passwd"),
        *("https://huggingface.co@evil.example/a/b", "https://huggingface.co:99999/a/b", "https://[::1"),
        *(f"{HUB}/resolve/main/../../x", f"{HUB}/resolve/main/%2e%2e/x", f"{HUB}/resolve/refs%2Fpr%2F1/x"),
        *("https://huggingface.co/datasets/a/b", "https://civitai.com/user/x", "civitai.com/models/-1"),
    ],
)
def test_other_texts_are_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"^[A-Z'].{20,300}$"):
        read_address(text)
