"""A large network's knowledge of handwritten digits, handed on to a network with a tenth of its parameters.

Data: scikit-learn's images of digits. The teacher learns from them and from copies of them that are moved, turned and
scaled. The student sees the images as they are and no copy, with their labels and the teacher's probabilities of all
ten classes for them; its loss brings its own probabilities near to these by the op `KlDiv`. Its twin starts from the
same weights, and sees the same images with the same labels in the same order, without the probabilities. What the
student knows beyond its twin, of moved digits above all, these have told it (Hinton, Vinyals and Dean, 2015,
"Distilling the Knowledge in a Neural Network", section 3).
"""
