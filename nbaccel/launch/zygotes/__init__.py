"""Clean processes that workers are forked from, and what they have loaded beforehand."""
