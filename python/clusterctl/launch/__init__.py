"""Launch lines: facts in, argv out; nothing here touches a machine."""
