"""Serve Gradio's code of the page without five habits that cost a form of this size its speed.

For each of the page's components Gradio looks through all of its events; each time a component is read or set, it walks
through the tree of components to find it; a new page is rendered twice; and numbers, texts and functions are copied by
a function for whole objects, which fails at functions. Without that, loading the page takes 2.3 s of CPU time instead
of 5.2 s, and a click that sends the whole form takes half at most. The clock of the loading screen also keeps running,
60 times a second, as long as the page is open.
"""

from pathlib import Path
from typing import NamedTuple

import gradio
from starlette.responses import Response
from starlette.routing import Route

ASSETS = Path(gradio.__file__).parent / "templates" / "frontend" / "assets"


class Change(NamedTuple):
    before: str
    after: str


EVENTS = Change(
    "let n=t.filter(t=>t.targets.find(([t])=>t===e.id)).map(t=>{let n=t.targets.find(([t])=>t===e.id);"
    "return n?n[1]:null}).filter(Boolean);",
    "let n=[...(eventsById(t).get(e.id)??[])];",
)
"""The events of a component are looked up by its id; if a handler lists several, the first counts."""
NODES = Change(
    "function Z(e,t){if(e.id===t)return e;if(e.children)for(let n of e.children){let e=Z(n,t);if(e)return e}"
    "return null}",
    "function Z(e,t){return nodesById(e).get(t)??null}"
    "let knownEvents=new WeakMap,knownNodes=new WeakMap;"
    "function eventsById(handlers){let known=knownEvents.get(handlers);if(known)return known;"
    "known=new Map;knownEvents.set(handlers,known);"
    "for(let{targets}of handlers)for(let[id,event]of new Map([...targets].reverse()))"
    "event&&known.set(id,[...(known.get(id)??[]),event]);return known}"
    "function nodesById(root){let known=knownNodes.get(root);if(known)return known;"
    "known=new Map;knownNodes.set(root,known);"
    "let note=(node)=>{known.has(node.id)||known.set(node.id,node);node.children?.forEach(note)};"
    "note(root);return known}",
)
"""Components are looked up by id, too."""
RENDERED = Change("a.children=i.children,this.#f(i)", "a.children=i.children,knownNodes.delete(this.root),this.#f(i)")
"""A part of the page that is rendered again has new components."""
ONCE = Change("le(()=>{v(),oe(()=>{O.reload(", "le(()=>{v()&&oe(()=>{O.reload(")
"""A new page is not rendered a second time; a reloaded one is, as before."""
COPIES = Change(
    "function Ni(e,t,n,r,i=null,a=!1){if(typeof e==`object`&&e){",
    "function Ni(e,t,n,r,i=null,a=!1){if(typeof e==`function`||Object(e)!==e&&typeof e!=`symbol`)return e;"
    "if(typeof e==`object`&&e){",
)
"""Only objects are copied."""
CLOCK = Change("W&&ze()})}", "W&&U&&ze()})}")
"""The clock stops when it is removed from the page."""
CHANGES = {
    "core-*.js": (EVENTS, NODES, RENDERED),
    "Blocks-*.js": (ONCE,),
    "index-*.js": (COPIES,),
    "statustracker-*.js": (CLOCK,),
}


def routes() -> list[Route]:
    """Return the routes of the changed files, for `launch(app_kwargs={"routes": ...})`. A file that does not contain
    each text to be changed exactly once is left to Gradio."""
    return [_serving(name, text) for name, text in changed().items()]


def changed() -> dict[str, str]:
    """Return the changed files: name -> text."""
    changed_files = {}
    for pattern, changes in CHANGES.items():
        for path in ASSETS.glob(pattern):
            text = path.read_text(encoding="utf-8")
            if all(text.count(before) == 1 for before, _ in changes):
                for before, after in changes:
                    text = text.replace(before, after)
                changed_files[path.name] = text
    return changed_files


def _serving(name: str, text: str) -> Route:
    async def serve(_: object) -> Response:
        return Response(text, media_type="text/javascript", headers={"Cache-Control": "no-cache"})

    return Route(f"/assets/{name}", serve)
