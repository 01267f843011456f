"""A golf ball on a lawn, rendered from nothing but arithmetic: one of the demo's two pictures.

python -m training.golf_ball golf_ball.jpg
"""

import sys

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SIZE, SEED = 640, 4
CENTRE, RADIUS = (330.0, 345.0), 150.0
SUN = np.array([-0.45, -0.7, 0.55]) / np.linalg.norm([-0.45, -0.7, 0.55])
HALF_WAY = (SUN + np.array([0, 0, 1])) / np.linalg.norm(SUN + np.array([0, 0, 1]))
DIMPLES, DIMPLE_WIDTH, DIMPLE_DEPTH = 330, 0.088, -0.5


def lawn(random: np.random.Generator) -> np.ndarray:
    """Blades of grass, small and blurred in the distance, long and sharp in front."""
    rows = np.linspace(0, 1, SIZE)[:, None, None]
    picture = np.array([0.30, 0.52, 0.16]) * (0.55 + 0.6 * rows) * np.ones((SIZE, SIZE, 1))
    image = Image.fromarray((picture * 255).clip(0, 255).astype(np.uint8))
    for part in range(6):
        draw = ImageDraw.Draw(image)
        low, high = part / 6, (part + 1) / 6
        for _ in range(2600):
            y = random.uniform(low - 0.03, high) * SIZE
            x, length = random.uniform(-20, SIZE + 20), 8 + 46 * max(y / SIZE, 0.0) ** 1.5
            lean, shade = random.normal(0, 0.35) * length, random.uniform(0.45, 1.25)
            colour = np.array([88, 142, 44]) * shade + random.normal(0, 8, 3)
            width = 1 if y < SIZE / 2 else 2
            draw.line([(x, y), (x + lean, y - length)], tuple(colour.clip(0, 255).astype(int).tolist()), width)
        if part < 4:
            image = image.filter(ImageFilter.GaussianBlur(2.4 - 0.6 * part))
    return np.asarray(image) / 255


def spread(count: int) -> np.ndarray:
    """Points spread evenly over the sphere."""
    index = np.arange(count) + 0.5
    height, turn = 1 - 2 * index / count, np.pi * (1 + 5**0.5) * index
    ring = np.sqrt(1 - height**2)
    points = np.stack([ring * np.cos(turn), height, ring * np.sin(turn)], axis=1)
    tilt = np.array([[1, 0, 0], [0, np.cos(0.6), -np.sin(0.6)], [0, np.sin(0.6), np.cos(0.6)]])
    return points @ tilt.T


def ball() -> tuple[np.ndarray, np.ndarray]:
    """The shaded ball and where it covers the picture."""
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    u, v = (x - CENTRE[0]) / RADIUS, (y - CENTRE[1]) / RADIUS
    inside = u**2 + v**2 < 1
    normal = np.stack([u, v, np.sqrt(np.clip(1 - u**2 - v**2, 0, 1))], axis=2)
    bent = normal.copy()
    for dimple in spread(DIMPLES):
        if dimple[2] < -0.2:
            continue
        away = normal - dimple
        distance = np.sqrt((away**2).sum(axis=2)) / DIMPLE_WIDTH
        slope = np.where(distance < 1, np.sin(np.pi * distance), 0)[..., None]
        bent += DIMPLE_DEPTH * slope * away / (np.sqrt((away**2).sum(axis=2, keepdims=True)) + 1e-9)
    bent /= np.linalg.norm(bent, axis=2, keepdims=True)
    light = np.clip(bent @ SUN, 0, 1)
    glint = np.clip(bent @ HALF_WAY, 0, 1) ** 60
    below = np.clip(bent[..., 1], 0, 1)[..., None] * np.array([0.10, 0.20, 0.03])  # the lawn shines back
    white = np.array([1.0, 0.99, 0.96]) * (1 - 0.25 * np.clip(v, 0, 1))[..., None]
    shade = (0.30 + 0.72 * light + 0.25 * glint)[..., None] * white
    return np.clip(shade * 0.95 + below * 0.6, 0, 1), inside.astype(float)


def soften(mask: np.ndarray) -> np.ndarray:
    """A mask with smooth edges."""
    picture = Image.fromarray((mask * 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(1.0))
    return np.asarray(picture)[..., None] / 255


def blades_in_front(image: Image.Image, random: np.random.Generator) -> None:
    """Draw some blades that stand before the ball."""
    draw = ImageDraw.Draw(image)
    for _ in range(260):
        x = random.uniform(CENTRE[0] - 170, CENTRE[0] + 190)
        y = random.uniform(CENTRE[1] + 140, CENTRE[1] + 190)
        length, shade = random.uniform(20, 62), random.uniform(0.5, 1.2)
        colour = tuple((np.array([88, 142, 44]) * shade).astype(int).tolist())
        draw.line([(x, y), (x + random.normal(0, 14), y - length)], colour, 2)


def render() -> Image.Image:
    """The whole picture."""
    random = np.random.default_rng(SEED)
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    shadow = np.exp(-((((x - CENTRE[0] - 60) / 150) ** 2 + ((y - CENTRE[1] - 135) / 42) ** 2) ** 1.5))
    ground = lawn(random) * (1 - 0.65 * shadow[..., None])
    sphere, inside = ball()
    cover = soften(inside)
    image = Image.fromarray(((ground * (1 - cover) + sphere * cover) * 255).astype(np.uint8))
    blades_in_front(image, random)
    return image.filter(ImageFilter.GaussianBlur(0.8)).resize((400, 400), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    render().save(sys.argv[1], quality=85)
