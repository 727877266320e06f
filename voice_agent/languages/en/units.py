"""English units, currencies and other symbols that stand beside numbers."""

from __future__ import annotations

# symbol: (one, many)
UNITS: dict[str, tuple[str, str]] = {
    "km": ("kilometer", "kilometers"),
    "m": ("meter", "meters"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "mi": ("mile", "miles"),
    "ft": ("foot", "feet"),
    "yd": ("yard", "yards"),
    "kg": ("kilogram", "kilograms"),
    "g": ("gram", "grams"),
    "mg": ("milligram", "milligrams"),
    "lb": ("pound", "pounds"),
    "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "l": ("liter", "liters"),
    "L": ("liter", "liters"),
    "ml": ("milliliter", "milliliters"),
    "mL": ("milliliter", "milliliters"),
    "s": ("second", "seconds"),
    "sec": ("second", "seconds"),
    "ms": ("millisecond", "milliseconds"),
    "min": ("minute", "minutes"),
    "h": ("hour", "hours"),
    "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"),
    "W": ("watt", "watts"),
    "kW": ("kilowatt", "kilowatts"),
    "kWh": ("kilowatt hour", "kilowatt hours"),
    "V": ("volt", "volts"),
    "A": ("amp", "amps"),
    "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"),
    "KB": ("kilobyte", "kilobytes"),
    "MB": ("megabyte", "megabytes"),
    "GB": ("gigabyte", "gigabytes"),
    "TB": ("terabyte", "terabytes"),
    "mph": ("mile per hour", "miles per hour"),
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "kph": ("kilometer per hour", "kilometers per hour"),
    "m/s": ("meter per second", "meters per second"),
    "°C": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "°": ("degree", "degrees"),
    "%": ("percent", "percent"),
    "px": ("pixel", "pixels"),
    "dB": ("decibel", "decibels"),
    "cal": ("calorie", "calories"),
    "kcal": ("kilocalorie", "kilocalories"),
    "m²": ("square meter", "square meters"),
    "km²": ("square kilometer", "square kilometers"),
    "m³": ("cubic meter", "cubic meters"),
    "cm³": ("cubic centimeter", "cubic centimeters"),
    "ha": ("hectare", "hectares"),
    "sq ft": ("square foot", "square feet"),
    "fps": ("frame per second", "frames per second"),
    "rpm": ("revolution per minute", "revolutions per minute"),
    "bpm": ("beat per minute", "beats per minute"),
    "kbps": ("kilobit per second", "kilobits per second"),
    "Mbps": ("megabit per second", "megabits per second"),
    "Gbps": ("gigabit per second", "gigabits per second"),
    "mA": ("milliamp", "milliamps"),
    "mAh": ("milliamp hour", "milliamp hours"),
    "MW": ("megawatt", "megawatts"),
    "kV": ("kilovolt", "kilovolts"),
    "kPa": ("kilopascal", "kilopascals"),
    "psi": ("pound per square inch", "pounds per square inch"),
    "gal": ("gallon", "gallons"),
    "µs": ("microsecond", "microseconds"),
    "µg": ("microgram", "micrograms"),
    "µm": ("micrometer", "micrometers"),
    "℃": ("degree Celsius", "degrees Celsius"),
    "℉": ("degree Fahrenheit", "degrees Fahrenheit"),
}

# symbol: (one, many, hundredth, hundredths)
CURRENCIES: dict[str, tuple[str, str, str, str]] = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "", ""),
    "₹": ("rupee", "rupees", "paisa", "paise"),
    "US$": ("dollar", "dollars", "cent", "cents"),
    "A$": ("Australian dollar", "Australian dollars", "cent", "cents"),
    "AU$": ("Australian dollar", "Australian dollars", "cent", "cents"),
    "C$": ("Canadian dollar", "Canadian dollars", "cent", "cents"),
    "CA$": ("Canadian dollar", "Canadian dollars", "cent", "cents"),
    "NZ$": ("New Zealand dollar", "New Zealand dollars", "cent", "cents"),
    "HK$": ("Hong Kong dollar", "Hong Kong dollars", "cent", "cents"),
    "CHF": ("Swiss franc", "Swiss francs", "centime", "centimes"),
}

CURRENCY_CODES: dict[str, str] = {
    "USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "INR": "₹", "AUD": "A$", "CAD": "C$",
    "NZD": "NZ$", "HKD": "HK$", "CHF": "CHF",
}  # fmt: skip

# After a slash: "$5/month".
PER: dict[str, str] = {
    "second": "second", "minute": "minute", "hour": "hour", "hr": "hour", "day": "day",
    "night": "night", "week": "week", "wk": "week", "month": "month", "mo": "month",
    "year": "year", "yr": "year", "person": "person", "user": "user", "seat": "seat",
    "kg": "kilogram",
}  # fmt: skip

FRACTIONS: dict[str, str] = {
    "½": "one half", "¼": "one quarter", "¾": "three quarters", "⅓": "one third",
    "⅔": "two thirds", "⅛": "one eighth",
}  # fmt: skip

SCALES: dict[str, str] = {
    "thousand": "thousand",
    "million": "million",
    "billion": "billion",
    "trillion": "trillion",
    "k": "thousand",
    "m": "million",
    "bn": "billion",
    "b": "billion",
}

SYMBOLS: dict[str, str] = {
    "&": "and",
    "@": "at",
    "+": "plus",
    "=": "equals",
    "%": "percent",
    "°": "degrees",
    "×": "times",
    "÷": "divided by",
    "±": "plus or minus",
    "≈": "about",
    "<": "less than",
    ">": "greater than",
    "≤": "at most",
    "≥": "at least",
    "→": "to",
    "€": "euros",
    "£": "pounds",
    "$": "dollars",
    "§": "section",
    "©": "copyright",
    "²": "squared",
    "³": "cubed",
}

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip

TLDS = frozenset(
    {
        "com", "org", "net", "io", "ai", "dev", "edu", "gov", "co", "uk", "de", "fr", "us", "ca",
        "eu", "info", "app", "tv", "nl", "ch", "jp", "au", "biz", "xyz",
    }
)  # fmt: skip
