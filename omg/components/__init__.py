"""The parts that play, store and learn are made of."""
