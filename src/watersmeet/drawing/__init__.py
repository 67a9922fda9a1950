"""Pictures of directed graphs without Graphviz: a layered layout, written as SVG, or the graph as DOT.

Knows nothing of databases. `layout` has the input and places it, `svg` writes it.
"""

from watersmeet.drawing.layout import Arrow, Box, Diagram, Picture, folded, place
from watersmeet.drawing.svg import to_dot, to_svg

__all__ = ["Arrow", "Box", "Diagram", "Picture", "folded", "place", "to_dot", "to_svg"]
