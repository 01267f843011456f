"""How the embedded models were trained, quantised and measured."""
