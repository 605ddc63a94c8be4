"""Fuzzing: any bytes give a value or ``RemoteProtocolError``, soon, and in bounded memory. ``make fuzz`` runs it."""
