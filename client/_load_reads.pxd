# A part of _load: reads without asking, timed at C speed. It has nothing that others call from C.
