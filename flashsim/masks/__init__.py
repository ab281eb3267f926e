"""Masks, as rules, bands, paddings, trees and biases; block patterns; dropout."""
