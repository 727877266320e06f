"""Sound at the edge: codecs, rates, reordering and concealment. Pure, no event loop."""
