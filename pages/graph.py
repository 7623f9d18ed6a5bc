"""Graph: how does a model flow, and where can it be cut?"""

from app import frame, graph_view

with frame.telling():
    graph_view.show(frame.open_page("Graph"))
