"""A plan on the whole window, for a review: verdict, figures, map, a few sliders, before and after a change."""
