"""The 80 classes of COCO, and which of them are classes of PASCAL VOC."""

from vitrail.evaluate.data.voc import CLASSES as VOC

COCO = (
    "background", "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat",
    "traffic light", "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep",
    "cow", "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee",
    "skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard",
    "tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich",
    "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed",
    "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven",
    "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip
SPELT_IN_VOC = {
    "airplane": "aeroplane", "dining table": "diningtable", "motorcycle": "motorbike", "potted plant": "pottedplant",
    "couch": "sofa", "tv": "tvmonitor",
}  # fmt: skip

NAMES = {"coco": COCO, "voc": VOC}
NUMBERS: dict[str, dict[str, int]] = {
    "coco": {name: i for i, name in enumerate(COCO) if i},
    "voc": {name: VOC.index(there) for name in COCO[1:] if (there := SPELT_IN_VOC.get(name, name)) in VOC},
}
"""By numbering, the mask value of each class that COCO names; other classes are background."""
