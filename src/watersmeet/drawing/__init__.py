"""Pictures of directed graphs without Graphviz: a layered layout, written as SVG, or the graph as DOT.

Knows nothing of databases. `diagram` has the input, `layout` places it, `folding` makes high pictures
broad, `svg` and `dot` write it.
"""

from watersmeet.drawing.diagram import Arrow, Box, Diagram
from watersmeet.drawing.dot import to_dot
from watersmeet.drawing.folding import folded
from watersmeet.drawing.layout import Picture, place
from watersmeet.drawing.svg import to_svg

__all__ = ["Arrow", "Box", "Diagram", "Picture", "folded", "place", "to_dot", "to_svg"]
