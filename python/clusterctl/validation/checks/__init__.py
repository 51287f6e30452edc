"""The checks of the validation: what each launches and how its output is read; nothing here touches a machine."""
