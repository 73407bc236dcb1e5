"""What a notebook shows: the form of ``nbaccel.configure()`` and the live panel.

Importing the package pulls in no widgets.
"""
