"""What a notebook shows: the form of ``nbaccel.configure()``. Importing the package pulls in no widgets."""
