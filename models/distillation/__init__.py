"""Knowledge distillation of a classifier of handwritten digits to a network with a tenth of its parameters.

Data: scikit-learn's images of digits. The teacher is trained on them and on augmented copies (rotated, scaled,
shifted). The student is trained on the original images alone, with their labels and the teacher's softened
probabilities; its loss has the Kullback-Leibler divergence from these, the op `KlDiv`. Its twin is the baseline: the
same initial weights and the same batches, without the teacher's probabilities. The difference in accuracy between
student and twin, above all on moved digits, is due to these probabilities.

References:
    Hinton, Vinyals and Dean, 2015, "Distilling the Knowledge in a Neural Network", section 3.
"""
