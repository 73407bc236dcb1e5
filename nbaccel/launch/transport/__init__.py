"""How kernel, zygote and workers talk: framed messages over sockets."""
