"""Routes of the tab Dataset."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.dataset.dataset_views import DatasetViews
from kohya_gui.server.json_routes import get, post

KEPT = {"Cache-Control": "private, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
"""A key names one state of a file: a changed image has a different one."""


def routes(allowed_paths: AllowedPaths) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`."""
    views = DatasetViews(allowed_paths)

    def thumbnail(request: Request) -> Response:
        return Response(views.thumbnail(request.path_params["key"]), media_type="image/jpeg", headers=KEPT)

    def preview(request: Request) -> Response:
        return Response(views.preview(request.path_params["key"]), media_type="image/jpeg", headers=KEPT)

    def tint(request: Request) -> Response:
        return Response(views.tint(request.path_params["key"]), media_type="image/png", headers=KEPT)

    return [
        post("dataset/open", lambda _, body: views.open(body)),
        post("dataset/look", lambda _, body: views.look(body)),
        post("dataset/alike", lambda _, body: views.alike(body)),
        post("dataset/step", lambda _, body: views.step(body)),
        post("dataset/regularisation", lambda _, body: views.regularisation(body)),
        post("dataset/fits", lambda _, body: views.fits(body)),
        get("dataset/thumbnail/{key}", thumbnail),
        get("dataset/preview/{key}", preview),
        get("dataset/mask/{key}", tint),
    ]
