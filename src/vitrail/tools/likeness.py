"""How alike two pictures are: PSNR and SSIM.

Wang, Bovik, Sheikh and Simoncelli, "Image Quality Assessment: From Error Visibility to Structural Similarity", IEEE
Transactions on Image Processing 13(4), 2004. Paper -> code: mu -> mean, sigma -> variance, C1 and C2 -> STEADY, the
11 x 11 Gaussian window of standard deviation 1.5 -> SIGMA and REACH; only windows that lie in the picture count.
"""

import math

import numpy as np
from jaxtyping import Float
from scipy.ndimage import gaussian_filter

from vitrail.errors import InputError

Pixels = Float[np.ndarray, "h w c"]
SIGMA, REACH = 1.5, 5
STEADY = (0.01**2, 0.03**2)


def psnr(first: Pixels, second: Pixels) -> float:
    """The peak signal-to-noise ratio in decibels of two pictures with values from 0 to 1; infinite for equal ones."""
    error = float(np.mean((np.asarray(first, np.float64) - second) ** 2))
    return math.inf if error == 0 else -10 * math.log10(error)


def ssim(first: Pixels, second: Pixels) -> float:
    """Eq. 13 and 17: the mean structural similarity of two pictures with values from 0 to 1, over channels too."""
    if min(first.shape[:2]) <= 2 * REACH:
        raise InputError(f"SSIM compares windows of 11 x 11, but the picture has {first.shape[0]} x {first.shape[1]}.")
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    mean_a, mean_b = local_mean(a), local_mean(b)
    variance_a, variance_b = local_mean(a * a) - mean_a**2, local_mean(b * b) - mean_b**2
    covariance = local_mean(a * b) - mean_a * mean_b
    light = (2 * mean_a * mean_b + STEADY[0]) / (mean_a**2 + mean_b**2 + STEADY[0])
    structure = (2 * covariance + STEADY[1]) / (variance_a + variance_b + STEADY[1])
    return float(np.mean(light * structure))


def local_mean(values: Pixels) -> Float[np.ndarray, "y x c"]:
    """Eq. 14: Gaussian-weighted means of all windows inside the picture."""
    blurred = gaussian_filter(values, (SIGMA, SIGMA, 0), radius=(REACH, REACH, 0))
    return blurred[REACH:-REACH, REACH:-REACH]
