from petzval.engine.build import load as load
from petzval.tasks.generate import generate as generate
from petzval.tasks.record import save as save
from petzval.tasks.result import Result as Result
from petzval.types import InputImage as InputImage
from petzval.types import Plan as Plan
from petzval.types import Request as Request

__version__: str
